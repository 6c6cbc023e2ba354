#!/usr/bin/env nextflow
// Extend the contigs of several samples with dlasm, a job each.
//
//   nextflow run workflows/nextflow/main.nf --samples samples.csv --runs runs
//
// samples.csv has the header sample,contigs,reads_1,reads_2 and a line per sample.
// For Slurm add -process.executor slurm; more options of dlasm: --options '-k 55'.

nextflow.enable.dsl = 2

params.samples = 'samples.csv'
params.runs = 'runs'
params.options = ''

process EXTEND {
    tag "${sample}"
    cpus 8
    memory '16 GB'
    publishDir params.runs, mode: 'copy'

    input:
    tuple val(sample), path(contigs), path(reads_1), path(reads_2)

    output:
    tuple val(sample), path("${sample}/extended.fasta"), emit: contigs
    path "${sample}/extensions.tsv", emit: extensions
    path "${sample}/summary.json", emit: summary

    script:
    """
    dlasm extend ${contigs} -1 ${reads_1} -2 ${reads_2} -o ${sample} \\
        --workers 0 --threads ${task.cpus} --memory ${task.memory.toMega()}MB ${params.options}
    """
}

workflow {
    samples = Channel.fromPath(params.samples)
        .splitCsv(header: true)
        .map { row -> tuple(row.sample, file(row.contigs), file(row.reads_1), file(row.reads_2)) }
    EXTEND(samples)
}
