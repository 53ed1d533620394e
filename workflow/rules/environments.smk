rule build_environment:
    input:
        doctor=PERMISSION,
    output:
        environment="results/{study}/environments/{environment}.json",
        record="results/{study}/environments/{environment}.json.prov.json",
    log:
        "results/{study}/logs/build_environment/{environment}.log",
    benchmark:
        "results/{study}/benchmarks/build_environment/{environment}.tsv"
    resources:
        mem_mb=2000,
        runtime=60,
        disk_mb=6000,
    params:
        recipe=recipe("build_environment"),
    shell:
        "python scripts/build_environment.py --study results/{wildcards.study}/study.json --recipe {params.recipe} --log {log}"
        " --environment {wildcards.environment} --output {output.environment}"
