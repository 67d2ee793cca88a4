//! ICING in memory, without a clock: the caller's closure times it. Packets lie in slots of 2 KiB over 8 MiB.
