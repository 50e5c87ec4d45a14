// A picture with every kind of control, for the tests of the frame.
import { paint } from "./paint.js";

export function picture(data) {
  const state = { wide: 3, colour: "forward", edge: false, pressed: 0, given: "", at: 0 };
  return {
    title: "probe",
    summary: data.summary,
    state,
    moving: ["at"],
    controls: [
      {
        kind: "slider",
        name: "wide",
        label: "boxes",
        min: 1,
        max: 8,
        step: 1,
        show: (n) => `${n} boxes`,
      },
      {
        kind: "choice",
        name: "colour",
        label: "colour",
        options: [["forward", "forward"], ["backward", "backward"]],
      },
      { kind: "toggle", name: "edge", label: "edges" },
      { kind: "button", label: "press", press: ({ pressed }) => ({ pressed: pressed + 1 }) },
      { kind: "entry", label: "a word", action: "give", enter: (text) => ({ given: text }) },
      {
        kind: "player",
        name: "at",
        label: "play head",
        min: 0,
        max: 100,
        seconds: 1,
        show: (n) => `${Math.round(n)} %`,
      },
      { kind: "ask", name: "again", label: "run again" },
    ],
    layout({ wide, colour, edge, pressed, given }, width) {
      const step = width / 8;
      const marks = Array.from({ length: wide }, (_, i) => ({
        kind: "box",
        id: i,
        x: i * step + 4,
        y: 10,
        w: step - 8,
        h: 40,
        fill: style.compute[colour],
        edge: edge ? style.ink : undefined,
        about: `box ${i} of ${wide}`,
      })); // prettier-ignore
      return {
        marks,
        height: 60,
        status: `pressed ${pressed}, given ${given || "nothing"}, runs ${data.runs}`,
      };
    },
    overlay({ at }, width) {
      const x = (at / 100) * width;
      return [{ kind: "line", edge: style.ink, points: [[x, 0], [x, 60]] }];
    },
  };
}
