"""One sample, step by step: candidates, sampler, unit, arrays."""
