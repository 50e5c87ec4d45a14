// A schedule in words: figures, what a rank waited for, the summary.
import { amount, commas, plural, roundHalfEven } from "./numbers.js";
import { actionText, LETTERS } from "./schedules.js";

// Writes a number in four digits, or in three with its unit.
export function figureText(value, unit) {
  if (unit) return amount(value, unit);
  if (!value || Math.abs(value) >= 1000) return commas(roundHalfEven(value));
  const digits = 10 ** (3 - Math.floor(Math.log10(Math.abs(value))));
  return String(Number((roundHalfEven(value * digits) / digits).toPrecision(12)));
}

// Writes a share in percent, with one digit.
export function percentText(share) {
  return `${(roundHalfEven(share * 1000) / 10).toFixed(1)} %`;
}

// Writes a number of microbatches.
export function inMicrobatches(number) {
  return `${figureText(number, "")} microbatch${number === 1 ? "" : "es"}`;
}

// Tells whether a value is at most its goal, but for rounding.
export function meetsGoal(value, goal) {
  return value <= goal * (1 + 1e-9);
}

// Names what came last of what an action had to wait for.
export function waitedFor({ grid, ends }, at, stages) {
  const both = [grid.waits[at], grid.paired.has(grid.codes[at]) ? grid.waits[at + 1] : -1];
  const last = both.filter((need) => need >= 0).sort((a, b) => ends[b] - ends[a])[0];
  return last === undefined ? "nothing" : actionText(grid.codes[last], stages);
}

// Counts the microbatches alive on each rank, from the number of activations of its stages.
export function keptBy({ rows, stages }, alive) {
  const count = (row) => new Set(row.map((code) => (code >> 2) % stages)).size;
  return rows.map((row, rank) => alive[rank] / count(row));
}

// Describes a schedule and its run in words; `link` is how messages queue.
export function scheduleSummary(schedule, run, times, unit, link) {
  const { name, stages, microbatches, rows } = schedule;
  const shape = `${plural(stages, "stage")} on ${plural(rows.length, "rank")}`;
  const costs = costsInWords(times, unit, link);
  const lines = [`${name}: ${shape}, ${inMicrobatches(microbatches)}; ${costs}`];
  if (run.refused) return [...lines, `  refused: ${run.refused.sentence}`].join("\n");
  lines.push(
    `  makespan ${figureText(run.makespan, unit)}; bubble share ${percentText(run.share)}, ` +
      `overhead ${percentText(run.overhead)}, span ${percentText(run.span)}`,
  );
  lines.push(`  microbatches alive at most, by stage: ${run.peaks.join(", ")}`);
  return lines.join("\n");
}

// Names the time of each action, and how messages queue.
function costsInWords(times, unit, link) {
  const costs = Object.entries(times).map(([action, all]) => `${action} ${range(all, unit)}`);
  return [...costs, ...(link ? [`queued by ${link}`] : [])].join(", ");
}

// Says what the numbers of the picture are.
export function scheduleCaption(times, unit, link, more) {
  const costs = costsInWords(times, unit, link), plain = unit ? "" : " (numbers without a unit)";
  const told = `Predicted: the schedule is simulated with ${costs}${plain}; nothing was run.`;
  return more ? `${told} ${more}` : told;
}

function range(all, unit) {
  const [low, high] = [Math.min(...all), Math.max(...all)].map((value) => figureText(value, unit));
  return low === high ? low : `${low} to ${high}`;
}

// Gives a row for each action, as a table: what, where and when.
export function scheduleRows({ schedule: { rows, stages }, run }, unit) {
  const inUnit = unit ? ` (${unit})` : "", { grid, starts, ends } = run;
  const header = ["rank", "action", "stage", "microbatch", `start${inUnit}`, `end${inUnit}`];
  const time = (value) => Number(value.toPrecision(9));
  const rowOf = (rank, i, code) => {
    const at = grid.first[rank] + i, cell = code >> 2;
    const isDead = run.refused && at >= run.stuck[rank];
    const when = isDead ? ["never", "never"] : [time(starts[at]), time(ends[at])];
    return [rank, LETTERS[code & 3], cell % stages, Math.floor(cell / stages), ...when];
  };
  return [header, ...rows.flatMap((row, rank) => row.map((code, i) => rowOf(rank, i, code)))];
}
