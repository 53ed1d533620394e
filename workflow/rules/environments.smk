rule build_environment:
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


rule read_vllm:
    input:
        environment=f"results/{{study}}/environments/{STUDY.environments.name('vllm')}.json",
    output:
        capabilities="results/{study}/vllm/capabilities.json",
        record="results/{study}/vllm/capabilities.json.prov.json",
    log:
        "results/{study}/logs/read_vllm.log",
    benchmark:
        "results/{study}/benchmarks/read_vllm.tsv"
    resources:
        mem_mb=1000,
        runtime=5,
        disk_mb=1,
    params:
        recipe=recipe("read_vllm"),
    shell:
        "python scripts/read_vllm.py --study results/{wildcards.study}/study.json --recipe {params.recipe} --log {log}"
        " --environment {input.environment} --output {output.capabilities}"
