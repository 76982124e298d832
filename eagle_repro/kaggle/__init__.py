"""What goes to Kaggle, made from kaggle-metadata.json: one notebook to fork, and a dataset with the library."""
