"""`gpudoctor cluster report`: many saved reports, compared."""
