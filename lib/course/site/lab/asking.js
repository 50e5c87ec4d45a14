// What the other files ask lib/course/tools/lab_server.py.
"use strict";

{
  // The answer to `many-ranks/<what>`; with `order` the server does something, else it only tells.
  globalThis.manyRanksAsk = async (shared, app, what, order, method = "POST") => {
    const { ServerConnection } = await shared("@jupyterlab/services");
    const settings = app.serviceManager.serverSettings;
    const request = order ? { method, body: JSON.stringify(order) } : {};
    const address = `${settings.baseUrl}many-ranks/${what}`;
    const answer = await ServerConnection.makeRequest(address, request, settings);
    if (!answer.ok) throw await ServerConnection.ResponseError.create(answer);
    return answer.json();
  };
}
