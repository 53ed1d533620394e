"""Studies on machines without network: what they lack is packed elsewhere, carried, and installed there."""
