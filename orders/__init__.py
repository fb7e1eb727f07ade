"""The business: what an adopter replaces with theirs."""
