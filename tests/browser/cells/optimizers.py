from lib.draw import optimizers

losses = {
    "momentum": [2.516, 2.534, 2.507],
    "adamw": [2.560, 2.571, 2.564],
    "adafactor": [2.417, 2.428, 2.409],
    "sm3": [2.701, 2.683, 2.715],
    "adam8bit": [2.561, 2.570, 2.566],
    "muon": [2.452, 2.441, float("nan")],
}
optimizers("Llama 3 8B", losses, names=list(losses))
