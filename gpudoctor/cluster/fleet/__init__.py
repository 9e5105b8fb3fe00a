"""`gpudoctor cluster report`: compares many saved reports."""
