from lib.draw import states

states("Llama 3 8B", ranks=8)
