"""What people call bundled models and devices: spellings of publications, of nvidia-smi, of clouds and of Hugging Face."""
