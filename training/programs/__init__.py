"""Programs of torch.export: captured graphs, their dynamic axes and calibration."""
