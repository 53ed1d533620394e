rule benchmark:
    input:
        unpack(benchmark_inputs),
    output:
        telemetry="results/{study}/bench/{subject}.telemetry.json",
        measurement="results/{study}/bench/{subject}.json",
        record="results/{study}/bench/{subject}.json.prov.json",
    log:
        "results/{study}/logs/benchmark/{subject}.log",
    benchmark:
        "results/{study}/benchmarks/benchmark/{subject}.tsv"
    threads: workflow.cores or 1
    resources:
        gpu=1 if STUDY.machine.gpus else 0,
        mem_mb=16000,
        runtime=120,
        disk_mb=100,
    params:
        recipe=recipe("benchmark"),
        proof=lambda _, input: f"--proof {input.proof}" if input.proof else "",
    shell:
        "python scripts/benchmark.py --study results/{wildcards.study}/study.json --recipe {params.recipe} --log {log}"
        " --subject {wildcards.subject} --weights {input.weights} --engine {input.engine} {params.proof}"
        " --telemetry {output.telemetry} --output {output.measurement}"


# The drift sentinel: the measurements are inputs, so it runs when they are done, and again when one is new.
rule benchmark_again:
    input:
        unpack(benchmark_inputs),
        subjects=MEASUREMENTS,
    output:
        measurement="results/{study}/bench/again/{subject}.json",
        record="results/{study}/bench/again/{subject}.json.prov.json",
    log:
        "results/{study}/logs/benchmark_again/{subject}.log",
    benchmark:
        "results/{study}/benchmarks/benchmark_again/{subject}.tsv"
    threads: workflow.cores or 1
    resources:
        gpu=1 if STUDY.machine.gpus else 0,
        mem_mb=16000,
        runtime=60,
        disk_mb=100,
    params:
        recipe=recipe("benchmark_again"),
        proof=lambda _, input: f"--proof {input.proof}" if input.proof else "",
    shell:
        "python scripts/benchmark_again.py --study results/{wildcards.study}/study.json --recipe {params.recipe} --log {log}"
        " --subject {wildcards.subject} --weights {input.weights} --engine {input.engine} {params.proof}"
        " --subjects {input.subjects} --output {output.measurement}"
