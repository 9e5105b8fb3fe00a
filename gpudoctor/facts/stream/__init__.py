"""The line format of `gpudoctor watch`, its sources, and the reader of recordings."""
