// What the names in legends mean, for a reader who points at one.

const MEANINGS = {
  "forward": "outputs are computed from inputs",
  "forward once more": "what was not kept is computed again, for backward",
  "backward": "gradients of the inputs and of the weights are computed",
  "backward for input": "gradients of the inputs, for which another rank may be waiting",
  "backward for weights": "gradients of the weights, for which only the optimizer waits",
  "compute": "any other computation",
  "step": "the optimizer changes the weights",
  "optimizer": "its step, which changes the weights; in memory, what it keeps between steps",
  "not computing": "the rank computes nothing: it waits or communicates",
  "waiting for others": "no data move before all ranks that take part have called the operation",
  "message": "one rank sends a tensor to one other",
  "all_reduce": "every rank gets the sum (or the maximum, …) of all ranks' tensors",
  "reduce": "one rank gets the sum (or the maximum, …) of all ranks' tensors",
  "reduce_scatter": "tensors are summed, and every rank gets its own part of the sum",
  "all_gather": "every rank gets the parts of all ranks, joined",
  "gather": "one rank gets the parts of all ranks",
  "scatter": "one rank gives each rank its own part",
  "broadcast": "every rank gets a copy of one rank's tensor",
  "all_to_all": "every rank gives each rank another part",
  "barrier": "every rank waits until all have come so far",
  "to_host": "a tensor moves from a GPU to the memory of the processor",
  "to_device": "a tensor moves from the memory of the processor to a GPU",
  "parameters": "the weights, those gathered from other ranks too",
  "gradients": "the gradients of the weights",
  "activations": "what forward computes and keeps for backward",
  "buffers": "tensors of the model that are not trained",
  "other": "the rest: inputs, results, what lives for a moment, buffers to send from",
};

// Gives a line for each name of a legend's entry that is known, "" where none is: an entry may
// have several names, with commas between them.
export function meaningOf(entry) {
  const known = entry.split(", ").filter((name) => Object.hasOwn(MEANINGS, name));
  return known.map((name) => `${name}: ${MEANINGS[name]}`).join("\n");
}
