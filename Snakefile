configfile: "config.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/environments.smk"
include: "workflow/rules/model.smk"
include: "workflow/rules/llama_cpp.smk"
include: "workflow/rules/gguf.smk"
include: "workflow/rules/fp8.smk"
include: "workflow/rules/bench.smk"
include: "workflow/rules/quality.smk"
include: "workflow/rules/report.smk"


rule all:
    default_target: True
    input:
        f"results/{STUDY.name}/report/index.html",
        f"results/{STUDY.name}/root.json",
