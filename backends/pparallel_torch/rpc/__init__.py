"""The transport on torch.distributed.rpc."""
