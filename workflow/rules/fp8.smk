rule quantize_fp8:
    input:
        model="results/{study}/model/manifest.json",
        environment=f"results/{{study}}/environments/{STUDY.environments.name(STUDY.fp8_role)}.json",
    output:
        manifest="results/{study}/fp8/manifest.json",
        facts="results/{study}/fp8/facts.json",
        record="results/{study}/fp8/manifest.json.prov.json",
    log:
        "results/{study}/logs/quantize_fp8.log",
    benchmark:
        "results/{study}/benchmarks/quantize_fp8.tsv"
    threads: 16
    resources:
        gpu=1 if STUDY.fp8.device == "cuda" else 0,
        mem_mb=8000,
        runtime=240,
        disk_mb=10000,
    params:
        recipe=recipe("quantize_fp8"),
    shell:
        "python scripts/quantize_fp8.py --study results/{wildcards.study}/study.json --recipe {params.recipe} --log {log}"
        " --model {input.model} --environment {input.environment} --output {output.manifest}"
        " --facts {output.facts}"
