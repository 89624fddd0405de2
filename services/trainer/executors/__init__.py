"""Where training jobs run: processes of this machine, or Kubeflow."""
