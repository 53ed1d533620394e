# What every rule without other inputs waits for. It is an order, not an ingredient: a later
# doctor's word makes nothing run again, and no record names it.
PERMISSION = ancient("results/{study}/doctor.json")


rule doctor:
    output:
        doctor="results/{study}/doctor.json",
        record="results/{study}/doctor.json.prov.json",
    log:
        "results/{study}/logs/doctor.log",
    benchmark:
        "results/{study}/benchmarks/doctor.tsv"
    resources:
        gpu=1 if STUDY.machine.gpus else 0,
        mem_mb=500,
        runtime=5,
        disk_mb=1,
    params:
        recipe=recipe("doctor"),
    shell:
        "python scripts/doctor.py --study results/{wildcards.study}/study.json --recipe {params.recipe} --log {log}"
        " --output {output.doctor}"
