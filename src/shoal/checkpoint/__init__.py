"""Checkpoints: a training's state in files that are either whole or refused.

A checkpoint is a folder `step-000001234` with parts (safetensors files, each written by one member) and a manifest. It
is written in a hidden draft folder and renamed when all of it is on disk, the manifest last. Nothing read from a file
is trusted before the digests match: first the manifest's own, then each part's.
"""
