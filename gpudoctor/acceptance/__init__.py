"""`python -m gpudoctor.acceptance`: what only a real GPU node can tell of gpudoctor, in one run and one archive."""
