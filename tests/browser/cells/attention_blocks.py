from lib.draw import attention_blocks

attention_blocks("contiguous", documents=[0, 700, 1500, 1600, 4096])
