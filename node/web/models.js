// The loaded models: where their layers are, what they do, and how to load and unload one.
import { useState } from 'preact/hooks';
import { html } from 'htm/preact';
import { post } from './api.js';
import { Aliases, OnDisk, Pull } from './files.js';
import { bytes, Events, Layers, LoadProgress, useLoad } from './parts.js';
import { text } from './strings.js';

const words = text.models;

// The stage as its node reports it, which counts its work.
const reported = (cluster, stage, index, model) => cluster?.nodes
  .find((node) => node.id === stage.node_id)?.stages
  .find((each) => each.stage === index && each.epoch === model.epoch);

function Model({ model, cluster, isAdmin, setNote }) {
  const [busy, setBusy] = useState(false);
  const stages = model.stages.map((stage, i) => ({ ...stage, now: reported(cluster, stage, i, model) }));
  const unload = async () => {
    if (!confirm(words.unloadSure(model.model))) return;
    setBusy(true);
    try {
      setNote(words.unloaded((await post('/unload', { model: model.id })).unloaded));
    } catch (error) {
      setNote(error.message);
    }
    setBusy(false);
  };
  const speed = Math.min(...stages.map((stage) => stage.now?.tokens_per_s ?? Infinity));
  return html`<article class="card" aria-label=${model.model}>
    <h2>${model.model} <span class=${`state ${model.state === 'serving' ? 'good' : model.state === 'failed' ? 'bad' : ''}`}>${words.states[model.state] || model.state}</span>${model.pinned && html` <span class="tag">${words.pinned}</span>`}</h2>
    <p class="small">${words.facts(model)}, ${bytes(model.tensor_bytes)}</p>
    ${model.problem && html`<p class="problem">${model.problem}</p>`}
    <dl class="facts">
      <div><dt>${words.requestsLabel}</dt><dd>${words.requests(model)}</dd></div>
      <div><dt>${words.roomLabel}</dt><dd>${words.room(model)}</dd></div>
      <div><dt>${words.speedLabel}</dt><dd>${Number.isFinite(speed) ? words.speed(speed) : '–'}</dd></div>
      ${model.draft_tokens > 0 && html`<div><dt>${words.draftsLabel}</dt><dd>${words.drafts(model)}</dd></div>`}
      <div><dt>${words.idleLabel}</dt><dd>${words.keepAlive(model.keep_alive_ms)}</dd></div>
    </dl>
    <${Layers} stages=${stages} />
    <div class="scroll"><table><caption class="hidden">${words.stages(model.model)}</caption>
      <thead><tr><th>${words.stage}</th><th>${words.node}</th><th>${words.device}</th><th>${words.layers}</th><th>${words.weights}</th><th>${words.kv}</th><th>${words.busy}</th><th>${words.tokens}</th><th>${words.wire}</th></tr></thead>
      <tbody>${stages.map((stage, i) => html`<tr key=${i}>
        <td>${i}</td><td>${stage.node}</td><td>${stage.device}</td><td>${stage.layers[0]}–${stage.layers[1] - 1}</td>
        <td>${bytes(stage.slice_bytes)}</td><td>${bytes(stage.kv_bytes)}</td>
        <td>${stage.now?.idle_share == null ? '–' : html`<meter min="0" max="1" value=${1 - stage.now.idle_share}></meter> ${Math.round(100 * (1 - stage.now.idle_share))} %`}</td>
        <td>${stage.now?.tokens_per_s == null ? '–' : stage.now.tokens_per_s.toFixed(1)}</td>
        <td>${stage.now?.link_wire || ''}</td></tr>`)}</tbody></table></div>
    <p class="actions">
      ${model.has_chat_template && html`<a class="button" href=${`#chat?model=${encodeURIComponent(model.model)}`}>${words.chat}</a>`}
      <a class="button" href=${`#plan?model=${encodeURIComponent(model.model)}`}>${words.planButton}</a>
      ${isAdmin && html`<button disabled=${busy} onClick=${unload}>${words.unload}</button>`}
    </p>
  </article>`;
}

// The time that a model stays; of POST load.
const stayBody = (stay) => ({
  ...(stay.minutes && { keep_alive_ms: Math.round(60000 * Number(stay.minutes)) }),
  ...(stay.pinned && { pinned: true }),
});

export function Models({ models, cluster, happened, isAdmin, viewOnly, own, pull, setPull, setNote }) {
  const [path, setPath] = useState('');
  const [stay, setStay] = useState({ minutes: '', pinned: false });
  const [load, loadModel] = useLoad(setNote);
  const [round, setRound] = useState(0); // of what the nodes have on disk
  const changed = () => setRound((n) => n + 1);
  const run = (body) => loadModel({ ...body, ...stayBody(stay) });
  const submit = (event) => {
    event.preventDefault();
    run({ model: path.trim() });
  };
  const states = (models || []).map((model) => `${model.id} ${model.state}`).join();
  return html`<h1>${words.heading}</h1>
    ${!models ? html`<p role="status">${text.loading}</p>` : models.length === 0 ? html`<p class="card">${words.none}</p>`
      : models.map((model) => html`<${Model} key=${model.id} model=${model} cluster=${cluster} isAdmin=${isAdmin} setNote=${setNote} />`)}
    ${isAdmin ? html`<form class="card" onSubmit=${submit}><h2>${words.load}</h2>
      <label>${words.path}<input name="path" value=${path} onInput=${(e) => setPath(e.target.value)} spellcheck="false" /></label>
      <div class="fields"><label>${words.keepFor}<input type="number" min="1" placeholder=${words.keepAlive(0)} value=${stay.minutes} onInput=${(e) => setStay({ ...stay, minutes: e.target.value })} /></label></div>
      <label class="check"><input type="checkbox" checked=${stay.pinned} onChange=${(e) => setStay({ ...stay, pinned: e.target.checked })} /> ${words.pin}</label>
      <p class="actions"><button class="main" disabled=${!path.trim() || load}>${words.loadButton}</button>
        <a class="button" href=${`#plan?model=${encodeURIComponent(path.trim())}`}>${words.planButton}</a></p>
      ${load && html`<${LoadProgress} load=${load} />`}</form>`
      : html`<p class="small">${viewOnly ? text.login.viewOnly : text.login.needAdmin}</p>`}
    <${OnDisk} own=${own} round=${`${round} ${states}`} changed=${changed} isAdmin=${isAdmin} busy=${load} load=${run} setNote=${setNote} />
    ${isAdmin && html`<${Pull} pull=${pull} setPull=${setPull} pulled=${changed} setNote=${setNote} />
    <${Aliases} changed=${changed} setNote=${setNote} />`}
    <${Events} happened=${happened} />`;
}
