"""`python -m acceptance`: compares gpudoctor with other tools on a real GPU node, in one run and archive."""
