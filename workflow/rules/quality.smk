rule evaluate_original:
    input:
        model="results/{study}/model/manifest.json",
        environment=f"results/{{study}}/environments/{STUDY.environments.name('fp8')}.json",
    output:
        quality="results/{study}/quality/checkpoint.json",
        record="results/{study}/quality/checkpoint.json.prov.json",
    log:
        "results/{study}/logs/evaluate_original.log",
    benchmark:
        "results/{study}/benchmarks/evaluate_original.tsv"
    resources:
        mem_mb=8000,
        runtime=240,
        disk_mb=2000,
    params:
        recipe=recipe("evaluate_original"),
    shell:
        "python scripts/evaluate_original.py --study results/{wildcards.study}/study.json --recipe {params.recipe} --log {log}"
        " --model {input.model} --environment {input.environment} --output {output.quality}"


rule evaluate_quality:
    input:
        unpack(evaluated),
        model="results/{study}/model/manifest.json",
        original="results/{study}/quality/checkpoint.json",
        environment=f"results/{{study}}/environments/{STUDY.environments.name('fp8')}.json",
    output:
        quality="results/{study}/quality/{artifact}.json",
        record="results/{study}/quality/{artifact}.json.prov.json",
    log:
        "results/{study}/logs/evaluate_quality/{artifact}.log",
    benchmark:
        "results/{study}/benchmarks/evaluate_quality/{artifact}.tsv"
    wildcard_constraints:
        artifact="(?!checkpoint)[\\w-]+",
    resources:
        gpu=1 if STUDY.fp8.device == "cuda" else 0,
        mem_mb=8000,
        runtime=480,
        disk_mb=32000,
    params:
        recipe=recipe("evaluate_quality"),
        llama_cpp=lambda wildcards, input: (
            f"--llama-cpp {input.llama_cpp}" if "llama_cpp" in input.keys() else ""
        ),
    shell:
        "python scripts/evaluate_quality.py --study results/{wildcards.study}/study.json --recipe {params.recipe} --log {log}"
        " --artifact {wildcards.artifact} --model {input.model} --original {input.original}"
        " --environment {input.environment} --weights {input.weights} {params.llama_cpp}"
        " --output {output.quality} --threads {threads}"
