rule convert_gguf:
    input:
        model="results/{study}/model/manifest.json",
        source="results/{study}/llama_cpp/source.json",
        environment=f"results/{{study}}/environments/{STUDY.environments.name('converter')}.json",
    output:
        gguf="results/{study}/gguf/f16.gguf",
        record="results/{study}/gguf/f16.gguf.prov.json",
    log:
        "results/{study}/logs/convert_gguf.log",
    benchmark:
        "results/{study}/benchmarks/convert_gguf.tsv"
    resources:
        mem_mb=8000,
        runtime=60,
        disk_mb=20000,
    params:
        recipe=recipe("convert_gguf"),
    shell:
        "python scripts/convert_gguf.py --study results/{wildcards.study}/study.json --recipe {params.recipe} --log {log}"
        " --model {input.model} --source {input.source} --environment {input.environment} --output {output.gguf}"


rule quantize_gguf:
    input:
        f16="results/{study}/gguf/f16.gguf",
        llama_cpp="results/{study}/llama_cpp/build.json",
    output:
        gguf="results/{study}/gguf/{type}.gguf",
        record="results/{study}/gguf/{type}.gguf.prov.json",
    log:
        "results/{study}/logs/quantize_gguf/{type}.log",
    benchmark:
        "results/{study}/benchmarks/quantize_gguf/{type}.tsv"
    wildcard_constraints:
        type="(?!f16)\\w+",
    threads: 16
    resources:
        mem_mb=4000,
        runtime=60,
        disk_mb=8000,
    params:
        recipe=recipe("quantize_gguf"),
    shell:
        "python scripts/quantize_gguf.py --study results/{wildcards.study}/study.json --recipe {params.recipe} --log {log}"
        " --f16 {input.f16} --llama-cpp {input.llama_cpp} --type {wildcards.type}"
        " --output {output.gguf} --threads {threads}"


rule inspect_gguf:
    input:
        gguf="results/{study}/gguf/{type}.gguf",
    output:
        inspection="results/{study}/gguf/{type}.inspect.json",
        record="results/{study}/gguf/{type}.inspect.json.prov.json",
    log:
        "results/{study}/logs/inspect_gguf/{type}.log",
    benchmark:
        "results/{study}/benchmarks/inspect_gguf/{type}.tsv"
    resources:
        mem_mb=1000,
        runtime=10,
        disk_mb=10,
    params:
        recipe=recipe("inspect_gguf"),
    shell:
        "python scripts/inspect_gguf.py --study results/{wildcards.study}/study.json --recipe {params.recipe} --log {log}"
        " --gguf {input.gguf} --type {wildcards.type} --output {output.inspection}"
