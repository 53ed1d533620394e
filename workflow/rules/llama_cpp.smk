rule fetch_llama_cpp:
    output:
        source="results/{study}/llama_cpp/source.json",
        record="results/{study}/llama_cpp/source.json.prov.json",
    log:
        "results/{study}/logs/fetch_llama_cpp.log",
    benchmark:
        "results/{study}/benchmarks/fetch_llama_cpp.tsv"
    resources:
        mem_mb=1000,
        runtime=30,
        disk_mb=1000,
    params:
        recipe=recipe("fetch_llama_cpp"),
    shell:
        "python scripts/fetch_llama_cpp.py --study results/{wildcards.study}/study.json --recipe {params.recipe} --log {log}"
        " --output {output.source}"


rule build_llama_cpp:
    input:
        source="results/{study}/llama_cpp/source.json",
    output:
        build="results/{study}/llama_cpp/build.json",
        record="results/{study}/llama_cpp/build.json.prov.json",
    log:
        "results/{study}/logs/build_llama_cpp.log",
    benchmark:
        "results/{study}/benchmarks/build_llama_cpp.tsv"
    threads: 16
    resources:
        mem_mb=12000,
        runtime=120,
        disk_mb=4000,
    params:
        recipe=recipe("build_llama_cpp"),
    shell:
        "python scripts/build_llama_cpp.py --study results/{wildcards.study}/study.json --recipe {params.recipe} --log {log}"
        " --source {input.source} --output {output.build} --threads {threads}"


rule prove_cuda:
    input:
        llama_cpp="results/{study}/llama_cpp/build.json",
    output:
        machine_code="results/{study}/llama_cpp/machine_code.json",
        record="results/{study}/llama_cpp/machine_code.json.prov.json",
    log:
        "results/{study}/logs/prove_cuda.log",
    benchmark:
        "results/{study}/benchmarks/prove_cuda.tsv"
    resources:
        mem_mb=1000,
        runtime=10,
        disk_mb=10,
    params:
        recipe=recipe("prove_cuda"),
    shell:
        "python scripts/prove_cuda.py --study results/{wildcards.study}/study.json --recipe {params.recipe} --log {log}"
        " --llama-cpp {input.llama_cpp} --output {output.machine_code}"
