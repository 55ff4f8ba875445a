"""Facts that come with the package: ``models/`` one file per family, ``gpus/`` one per accelerator.

Data only. Every entry says where it comes from in a ``source``; `fluidserve.io.catalog` reads them.
"""
