"""gpudoctor: is this multi-GPU node fit to train on, and if not, which part is at fault?"""

__version__ = "0.1.0"
