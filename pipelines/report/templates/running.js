// Fills the table of stages and follows it.
"use strict";
(() => {
  const body = document.querySelector("#stages tbody");

  const cell = (text, number) => {
    const made = document.createElement("td");
    made.textContent = text;
    if (number) made.className = "number";
    return made;
  };

  const show = (stages) => {
    document.getElementById("none").hidden = stages.length > 0;
    body.replaceChildren(...stages.map((stage) => {
      const row = document.createElement("tr");
      const progress = document.createElement("progress");
      progress.max = Math.max(1, stage.steps_planned);
      progress.value = stage.steps_done;
      progress.setAttribute("aria-label", `${stage.stage}: steps done`);
      const bar = document.createElement("td");
      bar.append(progress);
      const steps = `${stage.steps_done.toLocaleString("en")} of ${stage.steps_planned.toLocaleString("en")}`;
      const loss = stage.loss === null ? "-" : stage.loss.toFixed(3);
      row.append(cell(stage.run), cell(stage.stage), cell(stage.state), bar, cell(steps, true), cell(loss, true), cell(stage.detail));
      row.className = stage.state;
      return row;
    }));
  };

  show(JSON.parse(document.getElementById("status").textContent));
  setInterval(async () => {
    if (document.hidden) return;
    try {
      const answer = await fetch("/running.json");
      if (answer.ok) show(await answer.json());
    } catch {
      // The server was stopped: what is shown stays.
    }
  }, 2000);
})();
