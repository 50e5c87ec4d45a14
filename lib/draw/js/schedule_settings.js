// From the controls of the schedule explorer to a schedule with times. `data` is what
// lib/draw/schedule.py gathers, with the schedule that is `given`; `s` is the state of the
// controls.
import { gridOf, playSchedule, playStuck, refusal } from "./play_schedule.js";
import { generate, withMove } from "./schedules.js";

// Tells what the moves of bars belong to: with another schedule they are forgotten.
export function signatureOf(s) {
  return [s.kind, s.ranks, s.microbatches, s.chunks].join();
}

// Gives the moves of bars so far: [rank, from, to] each.
export function editsOf(s) {
  return s.of === signatureOf(s) ? s.edits : [];
}

// Gives the schedule that is chosen, before any bar was moved; an Error where there is none.
export function chosenSchedule(data, s) {
  if (s.kind === "given" || s.kind === "begun") return data[s.kind];
  return generate(s.kind, s.ranks, s.microbatches, s.chunks);
}

// Gives the schedule that is chosen, with its moved bars.
export function editedSchedule(data, s) {
  return editsOf(s).reduce(withMove, chosenSchedule(data, s));
}

// Plays a schedule with the times of the controls; one that no ranks could carry out, as far as it
// runs.
export function playWith(data, s, schedule) {
  const costs = costsOf(data, s, schedule);
  const isRefused = editsOf(s).length && refusal(gridOf(schedule));
  return isRefused ? playStuck(schedule, costs) : playSchedule(schedule, costs);
}

// Tells what each stage takes. A slider's time is that of all stages of a rank together, so that
// cutting a rank's work into more stages leaves its work as it was; different stages keep their
// proportions.
export function costsOf(data, s, { stages, rows }) {
  const spread = (name, count, value) => {
    const shape = data.shapes[name];
    if (shape?.length !== count) return new Array(count).fill(value);
    const mean = shape.reduce((sum, one) => sum + one, 0) / count;
    return shape.map((one) => (value * one) / mean);
  };
  const each = (name) => spread(name, stages, (s[name] * rows.length) / stages);
  const [forward, inputs, weights] = ["forward", "backward_input", "backward_weight"].map(each);
  const ratio = (name, i) => (data.ratios[name]?.length === stages ? data.ratios[name][i] : 1);
  const whole = inputs.map((time, i) => (time + weights[i]) * ratio("backward", i));
  const both = data.ratios.overlap?.length === stages, added = data.ratios.accumulate || [0];
  const usual = added.reduce((sum, one) => sum + one, 0) / added.length;
  return {
    table: [forward, whole, inputs, weights],
    send: spread("send", stages - 1, s.send),
    overlap: both ? forward.map((time, i) => (time + whole[i]) * data.ratios.overlap[i]) : null,
    block: data.block,
    link: s.link || null,
    ahead: s.link === "pair" ? data.ahead : null,
    accumulate: weights.map((time, i) => time * (added.length === stages ? added[i] : usual)),
  };
}

// Gives the times by the letters of their actions, for the summary.
export function timesOf(data, s, schedule) {
  const { table, send } = costsOf(data, s, schedule);
  const whole = data.ratios.backward ? { B: table[1] } : {};
  return { F: table[0], I: table[2], W: table[3], ...whole, send: send.length ? send : [0] };
}
