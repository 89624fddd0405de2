"""Executors of training jobs: processes of this machine, or Kubeflow."""
