rule report:
    input:
        model="results/{study}/model/manifest.json",
        llama_cpp="results/{study}/llama_cpp/build.json",
        machine_code=MACHINE_CODE,
        capabilities=CAPABILITIES,
        inspections=expand(
            "results/{{study}}/gguf/{type}.inspect.json", type=["f16", *STUDY.gguf.quantizations]
        ),
        fp8="results/{study}/fp8/manifest.json",
        checkpoints=expand(
            "results/{{study}}/checkpoints/{checkpoint}/manifest.json", checkpoint=STUDY.checkpoints
        ),
        measurements=MEASUREMENTS,
        telemetry=TELEMETRY,
        again=f"results/{{study}}/bench/again/{STUDY.benchmark.baseline}.json",
        quality=expand(
            "results/{{study}}/quality/{artifact}.json",
            artifact=["checkpoint", *STUDY.quality.artifacts] if STUDY.quality.artifacts else [],
        ),
    output:
        html="results/{study}/report/index.html",
        markdown="results/{study}/report/report.md",
        claims="results/{study}/report/claims.json",
        numbers="results/{study}/report/report.json",
        record="results/{study}/report/report.json.prov.json",
    log:
        "results/{study}/logs/report.log",
    benchmark:
        "results/{study}/benchmarks/report.tsv"
    resources:
        mem_mb=1000,
        runtime=10,
        disk_mb=50,
    params:
        recipe=recipe("report"),
    shell:
        "python scripts/report.py --study results/{wildcards.study}/study.json --recipe {params.recipe} --log {log}"
        " --output {output.numbers} --results {input.model} {input.llama_cpp} {input.machine_code} {input.capabilities} {input.inspections} {input.fp8}"
        " {input.checkpoints} {input.measurements} {input.telemetry} {input.again} {input.quality}"


rule seal:
    input:
        "results/{study}/report/report.json.prov.json",
    output:
        "results/{study}/root.json",
    log:
        "results/{study}/logs/seal.log",
    resources:
        mem_mb=500,
        runtime=5,
        disk_mb=1,
    shell:
        "python scripts/seal.py --study results/{wildcards.study}/study.json --output {output} 2> {log}"
