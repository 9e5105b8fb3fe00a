"""Rules of inference: each a pure function, a job in, hypotheses out. Which wins is decided in `infer`."""
