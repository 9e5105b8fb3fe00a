"""Rules of inference: pure functions that turn a job into hypotheses. `infer` decides which one wins."""
