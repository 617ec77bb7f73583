// The plan of the cluster for a model, also as if it were another cluster.
import { useEffect, useState } from 'preact/hooks';
import { html } from 'htm/preact';
import { post } from './api.js';
import { bytes, Layers, LoadProgress, query, useLoad } from './parts.js';
import { text } from './strings.js';

const words = text.plan;

function Result({ plan }) {
  return html`<section class="card" aria-live="polite"><h2>${plan.model.name}</h2>
    <${Layers} stages=${plan.stages} />
    <p>${words.predicted}: ${plan.steps.map((step) => `${step.sequences} × ${words.tokensPerSecond(1000 / step.step_ms)}`).join(', ')}</p>
    <div class="scroll"><table><caption class="hidden">${words.stages}</caption>
      <thead><tr><th>${text.models.node}</th><th>${text.models.device}</th><th>${text.models.layers}</th><th>${text.models.weights}</th><th>${text.models.kv}</th></tr></thead>
      <tbody>${plan.stages.map((stage, i) => html`<tr key=${i}><td>${stage.node}</td><td>${stage.device}</td><td>${stage.layers[0]}–${stage.layers[1] - 1}</td><td>${bytes(stage.weight_bytes)}</td><td>${bytes(stage.cache_bytes)}</td></tr>`)}</tbody></table></div>
    <ul>${plan.devices.map((device) => html`<li key=${device.device}><b>${device.device}</b>: ${device.why}</li>`)}</ul>
    ${plan.hints.map((hint) => html`<p key=${hint} class="small">${hint}</p>`)}
    <details><summary>${words.raw}</summary><pre>${JSON.stringify(plan, null, 1)}</pre></details></section>`;
}

export function Plan({ models, cluster, isAdmin, setNote }) {
  const [form, setForm] = useState({ model: '', node: '', ctx: '', seqs: '', objective: 'latency', exclude: '', assign: '' });
  const [plan, setPlan] = useState(null);
  const [problem, setProblem] = useState('');
  const [busy, setBusy] = useState(false);
  const [load, loadModel] = useLoad(setNote, setProblem);
  const set = (name) => (event) => setForm((old) => ({ ...old, ...(name === 'model' && { node: '' }), [name]: event.target.value }));
  useEffect(() => {
    const asked = query();
    setForm((old) => ({
      ...old,
      model: asked.get('model') || old.model || models?.[0]?.model || '',
      node: asked.get('node') || '',
      exclude: asked.get('without') || old.exclude,
    }));
  }, [Boolean(models)]);
  const body = () => {
    const out = { model: form.model.trim(), objective: form.objective };
    for (const name of ['ctx', 'seqs']) if (form[name]) out[name] = Number(form[name]);
    if (form.node) out.node = form.node;
    for (const name of ['exclude', 'assign']) if (form[name].trim()) out[name] = form[name].trim();
    return out;
  };
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    setProblem('');
    try {
      setPlan(await post('/plan', body()));
    } catch (error) {
      setPlan(null);
      setProblem(error.message);
    }
    setBusy(false);
  };
  return html`<h1>${words.heading}</h1><p>${words.words}</p>
    <form class="card" onSubmit=${submit}>
      <label>${words.model}<input name="model" list="loaded" value=${form.model} onInput=${set('model')} spellcheck="false" aria-describedby="model-hint" /></label>
      <p id="model-hint" class="small">${words.modelHint}</p>
      <datalist id="loaded">${(models || []).map((model) => html`<option key=${model.id} value=${model.model}></option>`)}</datalist>
      <div class="fields">
        <label>${words.ctx}<input type="number" min="1" placeholder=${words.fits} value=${form.ctx} onInput=${set('ctx')} /></label>
        <label>${words.seqs}<input type="number" min="1" placeholder=${words.fits} value=${form.seqs} onInput=${set('seqs')} /></label>
        <label>${words.objective}<select value=${form.objective} onChange=${set('objective')}><option value="latency">${words.latency}</option><option value="throughput">${words.throughput}</option></select></label>
        <label>${words.without}<input list="nodes" value=${form.exclude} onInput=${set('exclude')} /></label>
        <label>${words.split}<input placeholder=${words.splitHint} value=${form.assign} onInput=${set('assign')} /></label>
      </div>
      <datalist id="nodes">${(cluster?.nodes || []).map((node) => html`<option key=${node.id} value=${node.name}></option>`)}</datalist>
      <p class="actions"><button class="main" disabled=${busy || !form.model.trim()}>${busy ? words.planning : words.button}</button>
        ${isAdmin && plan && html`<button type="button" disabled=${load} onClick=${() => loadModel(body())}>${words.load}</button>`}</p>
      ${load && html`<${LoadProgress} load=${load} />`}
    </form>
    ${problem && html`<p class="card problem" role="alert">${problem}</p>`}
    ${plan && html`<${Result} plan=${plan} />`}`;
}
