"""`gpudoctor plan --try`: what was predicted against what a few steps measured."""
