"""Files to flat arrays: contigs, reads, alignments and candidate dumps. Knows no Dask, no CUDA."""
