//! What only reproduces the publications: paper suites and baselines, SCION of 2015, workloads and published figures.
