// What a picture shows as a table: rows of cells, the first of them the header.

// Gives what a mark tells, as text; `at` is where the pointer is, where one asks.
export function describe(mark, at) {
  return typeof mark.about === "function" ? mark.about(at) : mark.about;
}

// Gives a row for each thing that marks describe, once, with a cell for each line of it.
export function rowsOfMarks(marks) {
  const things = marks.filter((mark) => !mark.isKey);
  const texts = new Set(things.map((mark) => describe(mark)).filter(Boolean));
  const rows = [...texts].map((text) => text.split("\n"));
  const most = Math.max(1, ...rows.map((row) => row.length));
  const header = Array.from({ length: most }, (_, i) => (i ? `more ${i}` : "what"));
  return [header, ...rows];
}

// Gives rows as text, a line each, with tabs between the cells: spreadsheets take it so.
export function tableText(rows) {
  const cell = (value) => String(value ?? "").replace(/\s+/g, " ");
  return rows.map((row) => row.map(cell).join("\t") + "\n").join("");
}
