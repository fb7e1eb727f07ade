"""How we know: benchmarks, chaos, mutants, fuzz. Nothing imports it."""
