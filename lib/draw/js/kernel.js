// The kernel behind a picture, if there is one: it answers a greeting, and later what is asked.

const ANSWER_WITHIN = 60_000; // milliseconds
const LOST = "The kernel that made this picture has restarted or ended. Run the cell again.";
const SILENT = "The kernel has not answered for a minute: it may be busy, or interrupted. " +
  "You can ask again.";
const OVER = ["restarting", "autorestarting", "terminating", "dead"]; // as JupyterLab names it

// Greets the kernel of a model; gives {isAlive, isBusy, trouble, ask, end}. `trouble` is a sentence
// where it cannot answer any more. Calls `changed` after each change.
export function connectKernel(model, announce, changed) {
  const kernel = { isAlive: false, isBusy: false, trouble: "", ask, end };
  const connection = model.widget_manager?.kernel; // of JupyterLab; others tell of their comm alone
  let wait;
  const become = (isAlive, trouble) => {
    clearTimeout(wait);
    Object.assign(kernel, { isAlive, trouble, isBusy: false });
    changed();
  };
  const hear = (message) => {
    if (!message || !("manyRanks" in message)) return;
    if (message.manyRanks) announce(message.manyRanks);
    become(true, "");
  };
  const lose = () => become(false, LOST);
  const onStatus = (_, status) => OVER.includes(status) && lose();
  function ask(name, state) {
    Object.assign(kernel, { isBusy: true, trouble: "" });
    changed();
    wait = setTimeout(() => become(true, SILENT), ANSWER_WITHIN);
    model.send({ ask: name, state });
  }
  function end() {
    clearTimeout(wait);
    model.off?.("msg:custom", hear);
    model.off?.("comm_live_update", lose);
    connection?.statusChanged?.disconnect(onStatus);
    connection?.disposed?.disconnect(lose);
  }
  if (model.get("asks")) {
    model.on("msg:custom", hear);
    model.on("comm_live_update", lose);
    connection?.statusChanged?.connect(onStatus);
    connection?.disposed?.connect(lose);
    model.send({ ask: "", state: {} });
  }
  return kernel;
}
