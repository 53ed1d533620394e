rule fetch_model:
    input:
        unpack(model_inputs),
    output:
        manifest="results/{study}/model/manifest.json",
        record="results/{study}/model/manifest.json.prov.json",
    log:
        "results/{study}/logs/fetch_model.log",
    benchmark:
        "results/{study}/benchmarks/fetch_model.tsv"
    threads: 4
    resources:
        mem_mb=4000,
        runtime=240,
        disk_mb=20000,
    params:
        recipe=recipe("fetch_model"),
        llama_cpp=lambda wildcards, input: (
            f"--llama-cpp {input.llama_cpp}" if "llama_cpp" in input.keys() else ""
        ),
    shell:
        "python scripts/fetch_model.py --study results/{wildcards.study}/study.json --recipe {params.recipe} --log {log}"
        " {params.llama_cpp} --output {output.manifest}"


rule fetch_checkpoint:
    output:
        manifest="results/{study}/checkpoints/{checkpoint}/manifest.json",
        record="results/{study}/checkpoints/{checkpoint}/manifest.json.prov.json",
    log:
        "results/{study}/logs/fetch_checkpoint/{checkpoint}.log",
    benchmark:
        "results/{study}/benchmarks/fetch_checkpoint/{checkpoint}.tsv"
    resources:
        mem_mb=2000,
        runtime=240,
        disk_mb=20000,
    params:
        recipe=recipe("fetch_checkpoint"),
    shell:
        "python scripts/fetch_checkpoint.py --study results/{wildcards.study}/study.json --recipe {params.recipe} --log {log}"
        " --checkpoint {wildcards.checkpoint} --output {output.manifest}"
