"""Models and data sets of the Hugging Face Hub: downloaded once into the storage of a job."""
