"""Files of models that steps read: fastText (fasttext_model → fasttext_file), folders of transformers encoders."""
