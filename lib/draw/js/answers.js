// What readers have answered, by question, and whether they were shown its answer. It is kept in
// the reader's own browser, over a reload too; where that is not allowed, until the page is closed.
// Every picture of a question hears of it.

const known = (globalThis.manyRanksKept ??= new Map()); // question -> {tries, isShown}
const ANSWERED = "many-ranks-guessed"; // what the page hears, with the question
const keyOf = (question) => `many-ranks-guess: ${question}`;

// Gives what is kept of a question: {tries, isShown}.
export function keptOf(question) {
  if (!known.has(question)) known.set(question, stored(question));
  return known.get(question);
}

// Keeps one more answer to a question.
export function addAnswer(question, answer) {
  keep(question, { ...keptOf(question), tries: [...keptOf(question).tries, answer] });
}

// Keeps that the reader wanted to be shown the answer.
export function showAnswer(question) {
  keep(question, { ...keptOf(question), isShown: true });
}

// Forgets all of a question.
export function forgetAnswers(question) {
  keep(question, null);
}

// Calls back after each change of what is kept of a question; returns what ends that.
export function onAnswer(question, call) {
  const hear = ({ detail }) => detail === question && call();
  addEventListener(ANSWERED, hear);
  return () => removeEventListener(ANSWERED, hear);
}

function keep(question, kept) {
  known.set(question, kept || { tries: [], isShown: false });
  inStorage((storage) => {
    if (kept) storage.setItem(keyOf(question), JSON.stringify(kept));
    else storage.removeItem(keyOf(question));
  });
  dispatchEvent(new CustomEvent(ANSWERED, { detail: question }));
}

function stored(question) {
  const text = inStorage((storage) => storage.getItem(keyOf(question)));
  const { tries = [], isShown = false } = JSON.parse(text || "{}");
  return { tries, isShown };
}

// Asks the browser's storage; a page may not be allowed to, and V8 in Python has none.
function inStorage(call) {
  try {
    return call(globalThis.localStorage);
  } catch {
    return null;
  }
}
